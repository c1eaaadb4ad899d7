//! Keys of regressions and of `newton`.

use whimbrel_data::ColumnType;
use whimbrel_job::form::{BOOLEAN, COLUMN, Form, NOT_NEGATIVE, TEXT};
use whimbrel_job::reader::Read;
use whimbrel_job::writer::{inline, number, text};
use whimbrel_job::{choices, form, list, table};
use whimbrel_models::glm::Errors;

/// `[model]` of a regression.
#[derive(Clone, Debug, PartialEq)]
pub struct RegressionKeys {
    pub family: GlmFamily,
    pub offset: Option<String>,
    pub weights: Option<String>,
    /// Whether weights count equal rows.
    pub frequencies: bool,
    pub class_weights: Vec<(String, f64)>,
    /// Types of columns in `[schema]`; text without a type is a factor.
    pub types: Vec<(String, ColumnType)>,
    /// Levels without a coefficient, by column.
    pub reference: Vec<(String, String)>,
    pub interactions: Vec<String>,
    pub intercept: bool,
    pub ridge: f64,
    /// Whether each client has its own intercept.
    pub by_client: bool,
    /// Of Cox's model: the column of events; `None`: every time is one.
    pub event: Option<String>,
    /// Whether clients send the baseline hazards of their strata.
    pub baseline: bool,
}

impl Default for RegressionKeys {
    fn default() -> Self {
        Self {
            family: GlmFamily::Gaussian,
            offset: None,
            weights: None,
            frequencies: false,
            class_weights: Vec::new(),
            types: Vec::new(),
            reference: Vec::new(),
            interactions: Vec::new(),
            intercept: true,
            ridge: 0.0,
            by_client: false,
            event: None,
            baseline: false,
        }
    }
}

choices! {
    /// The family of a generalised linear model.
    pub enum GlmFamily {
        /// numbers, identity link: linear regression, with t-tests
        Gaussian = "gaussian",
        /// 0 or 1, two classes, or shares; logit link: logistic regression
        Binomial = "binomial",
        /// counts, log link
        Poisson = "poisson",
        /// counts with variance mu + alpha mu^2, log link; alpha by maximum likelihood
        NegativeBinomial = "negative-binomial",
        /// positive numbers, inverse link
        Gamma = "gamma",
        /// one of several classes; log-odds against the first
        Multinomial = "multinomial",
    }
}

table! {
    pub(crate) REGRESSION: RegressionKeys {
        /// distribution of the target
        family: FAMILY = "family", GlmFamily::FORM, default;
        /// a column that is added to the linear predictor, such as the logarithm of an exposure
        offset: OFFSET = "offset", COLUMN, unset "none";
        /// a column of weights of the rows
        weights: WEIGHTS = "weights", COLUMN, unset "1";
        /// meaning of the weights
        frequencies: WEIGHTS_ARE = "weights_are", MEANINGS, default;
        /// factors of the weights by class, such as `{ yes = 5.0 }`
        class_weights: CLASS_WEIGHTS = "class_weights", NUMBERS_BY_NAME, default;
        /// levels without a coefficient, such as `{ arm = "placebo" }`; by default the smallest
        /// number, or the first text in byte order
        reference: REFERENCE = "reference", TEXTS_BY_NAME, default;
        /// products of columns, such as `["age:arm"]`, beside the columns themselves
        interactions: INTERACTIONS = "interactions", PRODUCTS, default;
        /// whether the predictor has an intercept
        intercept: INTERCEPT = "intercept", BOOLEAN, default;
        /// factor of half the squared norm of the coefficients in data units, without intercepts, beside
        /// the mean log-likelihood
        ridge: RIDGE = "ridge", NOT_NEGATIVE, default;
        /// a fixed effect of each client, which stays with the client
        by_client: BY_CLIENT = "by_client", EFFECTS, default;
        /// a column that is 1 for an event and 0 for a censored time
        event: EVENT = "event", COLUMN, unset "every time is an event";
        /// whether each client sends the cumulative baseline hazard of its stratum, which all parties get with the model
        baseline: BASELINE = "baseline", BOOLEAN, default;
        ..{ types: Vec::new() }
    }
}

form! {
    MEANINGS: bool {
        /// precisions: a row's variance is divided by its weight (`var_weights` of statsmodels)
        "precisions" => false,
        /// numbers of equal rows (`freq_weights` of statsmodels)
        "frequencies" => true,
    }
}

form! {
    EFFECTS: bool {
        /// all clients share the intercept
        "none" => false,
        /// an intercept per client, profiled out locally
        "intercept" => true,
    }
}

const PRODUCTS: Form<Vec<String>> = list!(TEXT, "a list of column names joined by `:`");
const NUMBERS_BY_NAME: Form<Vec<(String, f64)>> = Form::new(
    "a table from classes to positive numbers",
    |v| v.entries()?.into_iter().map(|(name, v)| Ok((name, v.number(|x| x > 0.0)?))).collect(),
    |all| inline(all.iter().map(|(name, x)| (name.as_str(), number(*x)))),
);
const TEXTS_BY_NAME: Form<Vec<(String, String)>> = Form::new(
    "a table from columns to levels",
    |v| v.entries()?.into_iter().map(|(name, v)| Ok((name, v.text()?))).collect::<Read<_>>(),
    |all| inline(all.iter().map(|(name, level)| (name.as_str(), text(level)))),
);

/// The family's keys of `[method]`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InferenceKeys {
    pub errors: Errors,
    pub tests: bool,
    pub heterogeneity: bool,
}

table! {
    pub(super) INFERENCE: InferenceKeys {
        /// standard errors
        errors: ERRORS = "errors", ERROR_WORDS, default;
        /// whether each term gets a likelihood-ratio test of type II: both fits leave out the interactions that
        /// contain it
        tests: TESTS = "tests", BOOLEAN, default;
        /// whether clients also fit their rows alone, for Cochran's Q and I^2 of each coefficient
        heterogeneity: HETEROGENEITY = "heterogeneity", BOOLEAN, default;
    }
}

form! {
    pub(super) ERROR_WORDS: Errors {
        /// from the information matrix
        "model" => Errors::Model,
        /// sandwich over rows (HC0)
        "robust" => Errors::Robust,
        /// sandwich over clients, with the correction m/(m - 1) (n - 1)/(n - d), except in Cox's model
        "clustered" => Errors::Clustered,
    }
}
