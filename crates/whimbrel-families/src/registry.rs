//! The installed families and the tables made of their keys.

use crate::BUILT_IN;
use crate::family::{Family, MethodKind, ModelKind};
use std::sync::OnceLock;
use whimbrel_job::key::{JobKey, Section, Word};

static INSTALLED: OnceLock<Registry> = OnceLock::new();

/// The installed families, with the `[model]` and `[method]` tables made of their keys.
pub struct Registry {
    families: Vec<&'static Family>,
    /// `[model]`, with the keys of every family.
    pub(crate) model: Section,
    /// `[method]` with the keys of all families.
    pub(crate) method: Section,
    pub(crate) model_kind: &'static JobKey,
    pub(crate) method_kind: &'static JobKey,
}

/// The registry in use: the [installed](install) one, or else the built-in families.
pub fn registry() -> &'static Registry {
    INSTALLED.get_or_init(|| Registry::new(&[]))
}

/// Adds families to the built-in ones. Call it once, before any job is read; names of methods must
/// be unique.
pub fn install(more: &[&'static Family]) -> Result<(), String> {
    let registry = Registry::new(more);
    registry.check()?;
    INSTALLED.set(registry).map_err(|_| "families must be installed before any job is read".into())
}

impl Registry {
    fn new(more: &[&'static Family]) -> Self {
        let families: Vec<&'static Family> = more.iter().chain(BUILT_IN).copied().collect();
        let in_order = || BUILT_IN.iter().rev().chain(more);
        let words = |all: &mut dyn Iterator<Item = Word>| {
            &*Vec::leak(unique(all, |one, other| one.name == other.name))
        };
        let models = words(&mut in_order().flat_map(|f| f.models).map(|kind| kind.word));
        let methods = words(&mut in_order().flat_map(|f| f.methods).map(|kind| kind.word));
        // Keys are static definitions; these two are built once per process.
        let kind = |doc, words| -> &'static JobKey {
            Box::leak(Box::new(JobKey::required("kind", "", doc).words(words)))
        };
        let (model_kind, method_kind) = (kind("the model", models), kind("the algorithm", methods));
        let keys = |first, all: &mut dyn Iterator<Item = &'static JobKey>| {
            let all = std::iter::once(first).chain(all);
            &*Vec::leak(unique(all, |one, other| std::ptr::eq(*one, *other)))
        };
        let mut of_models = in_order().flat_map(|f| f.models).flat_map(|kind| kind.keys).copied();
        let mut of_methods = in_order().flat_map(|f| f.methods).flat_map(|kind| kind.keys).copied();
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

    /// Refuses an added method whose name is taken.
    fn check(&self) -> Result<(), String> {
        let outside = &self.families[..self.families.len() - BUILT_IN.len()];
        for (at, family) in outside.iter().enumerate() {
            let others = self.families[at + 1..].iter().flat_map(|family| family.methods);
            let taken: Vec<&str> = others.map(|kind| kind.word.name).collect();
            let own = family.methods.iter().map(|kind| kind.word.name);
            if let Some(name) = own.into_iter().find(|name| taken.contains(name)) {
                return Err(format!("two families have a method \"{name}\""));
            }
        }
        Ok(())
    }

    /// Every family, in the order in which they are asked.
    pub fn families(&self) -> &[&'static Family] {
        &self.families
    }

    /// A method by name, with its family. If several families have it, the last one that also has
    /// the model (`sgd` of a regression belongs to the gradient family, of a network to learners).
    pub fn method(
        &self,
        word: &str,
        model: Option<&str>,
    ) -> Option<(&'static Family, &'static MethodKind)> {
        let all = self.families.iter().flat_map(|f| f.methods.iter().map(move |kind| (*f, kind)));
        let named: Vec<_> = all.filter(|(_, kind)| kind.word.name == word).collect();
        let fits = |family: &Family| family.models.iter().any(|kind| Some(kind.word.name) == model);
        named.iter().rev().find(|(family, _)| fits(family)).or(named.last()).copied()
    }

    /// The families that define a model, with their definitions.
    pub fn models(&self, word: &str) -> Vec<(&'static Family, &'static ModelKind)> {
        let all = self.families.iter().flat_map(|f| f.models.iter().map(move |kind| (*f, kind)));
        all.filter(|(_, kind)| kind.word.name == word).collect()
    }

    /// The models that a method fits.
    pub(crate) fn fitted_by(&self, method: &str) -> Vec<&'static str> {
        let has = |family: &&&'static Family| family.methods.iter().any(|m| m.word.name == method);
        let of = |family: &&'static Family| family.models.iter().map(|kind| kind.word.name);
        once(self.families.iter().filter(has).flat_map(of))
    }

    /// The keys of a model in the family of a method.
    pub(crate) fn model_keys(&self, method: &str, model: &str) -> &'static [&'static JobKey] {
        let family = self.method(method, Some(model)).map(|(family, _)| family);
        let kind = family.and_then(|f| f.models.iter().find(|kind| kind.word.name == model));
        kind.map_or(&[], |kind| kind.keys)
    }

    /// The algorithms with a property.
    pub(crate) fn algorithms(&self, has: impl Fn(&MethodKind) -> bool) -> Vec<&'static str> {
        let kinds = self.families.iter().rev().flat_map(|family| family.methods);
        once(kinds.filter(|kind| has(kind)).map(|kind| kind.algorithm))
    }

    /// The methods' defaults in words: the most common one, then the exceptions by name.
    pub(crate) fn usual(
        &self,
        among: impl Fn(&MethodKind) -> bool,
        word: impl Fn(&MethodKind) -> &'static str,
    ) -> String {
        let kinds = self.families.iter().rev().flat_map(|family| family.methods);
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

    /// The kinds of `[model]` or `[method]` that take a key.
    pub(crate) fn kinds_with(&self, key: &JobKey, of_models: bool) -> Vec<&'static str> {
        let takes = |keys: &[&'static JobKey]| keys.iter().any(|known| std::ptr::eq(*known, key));
        if !of_models {
            return self.algorithms(|kind| takes(kind.keys));
        }
        let kinds = self.families.iter().rev().flat_map(|family| family.models);
        once(kinds.filter(|kind| takes(kind.keys)).map(|kind| kind.word.name))
    }

    /// The models of families whose method of this name takes the key, except models of families
    /// whose method of this name does not.
    pub(crate) fn models_with(&self, key: &JobKey, algorithm: &str) -> Vec<&'static str> {
        let has = |family: &Family, takes: bool| {
            // tidy: allow(kinds): the registry looks up names that families declare
            let of_name = |kind: &&MethodKind| kind.algorithm == algorithm;
            let mut kinds = family.methods.iter().filter(of_name);
            kinds.any(|kind| kind.keys.iter().any(|known| std::ptr::eq(*known, key)) == takes)
        };
        let models = |takes: bool| {
            let families = self.families.iter().filter(move |family| has(family, takes));
            families.flat_map(|family| family.models).map(|kind| kind.word.name)
        };
        let others: Vec<&str> = models(false).collect();
        models(true).filter(|name| !others.contains(name)).collect()
    }

    /// The kinds that a key of `[model]` or `[method]` is limited to; empty: all.
    pub(crate) fn limits(&self, section: &Section, key: &JobKey) -> Vec<&'static str> {
        let of_models = std::ptr::eq(section, &self.model);
        let is_kind = std::ptr::eq(key, self.model_kind) || std::ptr::eq(key, self.method_kind);
        if is_kind || !(of_models || std::ptr::eq(section, &self.method)) {
            return Vec::new();
        }
        let kinds = self.kinds_with(key, of_models);
        let families = self.families.iter();
        let all = if of_models {
            once(families.flat_map(|f| f.models).map(|kind| kind.word.name))
        } else {
            once(families.flat_map(|f| f.methods).map(|kind| kind.algorithm))
        };
        if kinds.len() == all.len() { Vec::new() } else { kinds }
    }
}

fn once(names: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    unique(names, PartialEq::eq)
}

/// Unique items in order of first occurrence: families may share a model, a method or a key.
fn unique<T>(all: impl Iterator<Item = T>, same: impl Fn(&T, &T) -> bool) -> Vec<T> {
    let mut found: Vec<T> = Vec::new();
    for item in all {
        if !found.iter().any(|known| same(known, &item)) {
            found.push(item);
        }
    }
    found
}

/// `a, b and c`.
fn all_of(names: &[&str]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        names => names.concat(),
    }
}
