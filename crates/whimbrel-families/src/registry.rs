//! The families of this program, and the keys of `[model]` and `[method]` that they define.

use crate::BUILT_IN;
use crate::family::{Family, MethodKind, ModelKind};
use std::sync::OnceLock;
use whimbrel_job::key::{JobKey, Section, Word};

static INSTALLED: OnceLock<Registry> = OnceLock::new();

/// Families with the tables of their keys.
pub struct Registry {
    families: Vec<&'static dyn Family>,
    /// `[model]` with the keys of all families.
    pub(crate) model: Section,
    /// `[method]` with the keys of all families.
    pub(crate) method: Section,
    /// `kind` in each.
    pub(crate) model_kind: &'static JobKey,
    pub(crate) method_kind: &'static JobKey,
}

/// The registry in use: the [installed](install) one, else that of the built-in families.
pub fn registry() -> &'static Registry {
    INSTALLED.get_or_init(|| Registry::new(&[]))
}

/// Adds external families to the built-in ones, before any job is read. Fails with the reason if a word is
/// taken, and on a second call.
pub fn install(more: &[&'static dyn Family]) -> Result<(), String> {
    let registry = Registry::new(more);
    registry.check()?;
    INSTALLED.set(registry).map_err(|_| "families are installed before any job is read".into())
}

impl Registry {
    fn new(more: &[&'static dyn Family]) -> Self {
        let families: Vec<&'static dyn Family> = more.iter().chain(BUILT_IN).copied().collect();
        let in_order = || BUILT_IN.iter().rev().chain(more);
        let models: Vec<Word> = in_order().flat_map(|f| f.models()).map(|kind| kind.word).collect();
        let methods: Vec<Word> =
            in_order().flat_map(|f| f.methods()).map(|kind| kind.word).collect();
        // Families may share a model or method: its word is listed once.
        let unique = |words: Vec<Word>| -> Vec<Word> {
            let first = |at: usize| words[..at].iter().all(|word| word.name != words[at].name);
            (0..words.len()).filter(|&at| first(at)).map(|at| words[at]).collect()
        };
        let (models, methods) = (unique(models), unique(methods));
        // Definitions are static; these are created once per process.
        let model_kind: &'static JobKey =
            Box::leak(Box::new(JobKey::required("kind", "", "the model").words(Vec::leak(models))));
        let method_kind: &'static JobKey = Box::leak(Box::new(
            JobKey::required("kind", "", "the algorithm").words(Vec::leak(methods)),
        ));
        let keys = |first, all: &mut dyn Iterator<Item = &'static JobKey>| {
            let mut keys: Vec<&'static JobKey> = vec![first];
            for key in all {
                if !keys.iter().any(|known| std::ptr::eq(*known, key)) {
                    keys.push(key);
                }
            }
            &*Vec::leak(keys)
        };
        let mut of_models = in_order().flat_map(|f| f.models()).flat_map(|kind| kind.keys).copied();
        let mut of_methods =
            in_order().flat_map(|f| f.methods()).flat_map(|kind| kind.keys).copied();
        Self {
            model: Section {
                name: "model",
                doc: "The model.",
                keys: keys(model_kind, &mut of_models),
                example: "[model]\nkind = \"gmm\"\ncomponents = 3\ncovariance = \"full\"\n\
                          init = \"federated-kmeans\"\nreg_covar = 1e-6\n\
                          penalty = { dirichlet = 0.001, inverse_wishart = { nu = 0.01, psi = 0.01 } }\n",
            },
            method: Section {
                name: "method",
                doc: "Keys that methods of several families share; those of one family are on its page. Keys of \
                      `sgd` apply to its presets as well.",
                keys: keys(method_kind, &mut of_methods),
                example: "[method]\nkind = \"fedem\"\nrounds = 500\nbatch = 20\nlocal_steps = 4\n\
                          step = { initial = 0.5, power = 0.6, delay = 100 }\nparticipation = 0.75\n\
                          evaluate = { every = 10 }\nstop = { field_norm2 = 1e-12, patience = 20 }\n",
            },
            model_kind,
            method_kind,
            families,
        }
    }

    /// Refuses external methods whose name is taken.
    fn check(&self) -> Result<(), String> {
        let outside = &self.families[..self.families.len() - BUILT_IN.len()];
        for (at, family) in outside.iter().enumerate() {
            let others = self.families[at + 1..].iter().flat_map(|family| family.methods());
            let taken: Vec<&str> = others.map(|kind| kind.word.name).collect();
            let own = family.methods().iter().map(|kind| kind.word.name);
            if let Some(name) = own.into_iter().find(|name| taken.contains(name)) {
                return Err(format!("two families have a method \"{name}\""));
            }
        }
        Ok(())
    }

    /// In the order in which `whimbrel new` asks them.
    pub fn families(&self) -> &[&'static dyn Family] {
        &self.families
    }

    /// A method and its family by name; of several, the last family with the model: `sgd` of a regression is
    /// that of the gradient family, `sgd` of a network that of learners.
    pub fn method(
        &self,
        word: &str,
        model: Option<&str>,
    ) -> Option<(&'static dyn Family, &'static MethodKind)> {
        let all = self.families.iter().flat_map(|f| f.methods().iter().map(move |kind| (*f, kind)));
        let named: Vec<_> = all.filter(|(_, kind)| kind.word.name == word).collect();
        let fits =
            |family: &dyn Family| family.models().iter().any(|kind| Some(kind.word.name) == model);
        named.iter().rev().find(|(family, _)| fits(*family)).or(named.last()).copied()
    }

    /// Families with a model of this name, and its definition.
    pub fn models(&self, word: &str) -> Vec<(&'static dyn Family, &'static ModelKind)> {
        let all = self.families.iter().flat_map(|f| f.models().iter().map(move |kind| (*f, kind)));
        all.filter(|(_, kind)| kind.word.name == word).collect()
    }

    /// Keys of a model in the family of the method.
    pub(crate) fn model_keys(&self, method: &str, model: &str) -> &'static [&'static JobKey] {
        let family = self.method(method, Some(model)).map(|(family, _)| family);
        let kind = family.and_then(|f| f.models().iter().find(|kind| kind.word.name == model));
        kind.map_or(&[], |kind| kind.keys)
    }

    /// The algorithms with a property.
    pub(crate) fn algorithms(&self, has: impl Fn(&MethodKind) -> bool) -> Vec<&'static str> {
        let kinds = self.families.iter().rev().flat_map(|family| family.methods());
        once(kinds.filter(|kind| has(kind)).map(|kind| kind.algorithm))
    }

    /// Defaults by method: the most frequent one, then the others with their methods.
    pub(crate) fn usual(
        &self,
        among: impl Fn(&MethodKind) -> bool,
        word: impl Fn(&MethodKind) -> &'static str,
    ) -> String {
        let kinds = self.families.iter().rev().flat_map(|family| family.methods());
        let words = once(kinds.filter(|kind| among(kind)).map(&word)).into_iter();
        let of = |one| (one, self.algorithms(|kind| among(kind) && word(kind) == one));
        let mut groups: Vec<_> = words.map(of).collect();
        groups.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
        let texts = groups.iter().enumerate().map(|(at, (word, names))| match at {
            0 => format!("{word:?}"),
            _ => format!("for {} {word:?}", all_of(names)),
        });
        texts.collect::<Vec<_>>().join("; ")
    }

    /// The kinds of `[model]` or `[method]` that accept a key.
    pub(crate) fn kinds_with(&self, key: &JobKey, of_models: bool) -> Vec<&'static str> {
        let takes = |keys: &[&'static JobKey]| keys.iter().any(|known| std::ptr::eq(*known, key));
        if !of_models {
            return self.algorithms(|kind| takes(kind.keys));
        }
        let kinds = self.families.iter().rev().flat_map(|family| family.models());
        once(kinds.filter(|kind| takes(kind.keys)).map(|kind| kind.word.name))
    }

    /// Models of the families whose method of this name accepts a key, without models of those whose method
    /// does not.
    pub(crate) fn models_with(&self, key: &JobKey, algorithm: &str) -> Vec<&'static str> {
        let has = |family: &&'static dyn Family, takes: bool| {
            // tidy: allow(kinds): the registry looks up a name among those that families give
            let of_name = |kind: &&MethodKind| kind.algorithm == algorithm;
            let mut kinds = family.methods().iter().filter(of_name);
            kinds.any(|kind| kind.keys.iter().any(|known| std::ptr::eq(*known, key)) == takes)
        };
        let models = |takes: bool| {
            let families = self.families.iter().filter(move |family| has(family, takes));
            families.flat_map(|family| family.models()).map(|kind| kind.word.name)
        };
        let others: Vec<&str> = models(false).collect();
        models(true).filter(|name| !others.contains(name)).collect()
    }

    /// The kinds to which a key of `[model]` or `[method]` is restricted; empty: none.
    pub(crate) fn limits(&self, section: &Section, key: &JobKey) -> Vec<&'static str> {
        let of_models = std::ptr::eq(section, &self.model);
        let is_kind = std::ptr::eq(key, self.model_kind) || std::ptr::eq(key, self.method_kind);
        if is_kind || !(of_models || std::ptr::eq(section, &self.method)) {
            return Vec::new();
        }
        let kinds = self.kinds_with(key, of_models);
        let mut all: Vec<&str> = if of_models {
            self.families.iter().flat_map(|f| f.models()).map(|k| k.word.name).collect()
        } else {
            self.families.iter().flat_map(|f| f.methods()).map(|k| k.algorithm).collect()
        };
        all.sort_unstable();
        all.dedup();
        if kinds.len() == all.len() { Vec::new() } else { kinds }
    }
}

/// Each name at its first place.
fn once(all: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let mut names = Vec::new();
    all.for_each(|name| {
        if !names.contains(&name) {
            names.push(name);
        }
    });
    names
}

/// `a, b and c`.
fn all_of(names: &[&str]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        names => names.concat(),
    }
}
