"""Reference fits of `glm.json` by statsmodels and lifelines, and the rows of `glm.csv`.

python3 glm.py, with statsmodels 0.15.0, lifelines 0.30.3, numpy 2.4.6, pandas 2.3.3 and scipy 1.17.1.
Twelve clients: `tiny` has 3 rows, `s3` a single class of `sick`.
"""

import json
import warnings

import lifelines
import numpy as np
import pandas as pd
import patsy
import scipy.stats
import statsmodels
import statsmodels.api as sm
from lifelines import CoxPHFitter

warnings.filterwarnings("ignore")


def rows(n=300):
    rng = np.random.default_rng(5)
    d = pd.DataFrame(
        {
            "site": rng.choice([f"s{i}" for i in range(11)], n),
            "age": rng.normal(60, 12, n).round(1),
            "bmi": rng.normal(26, 4, n).round(1),
            "arm": rng.choice(["placebo", "drug", "high"], n),
            "w": rng.integers(1, 5, n),
            "off": rng.normal(0, 0.3, n).round(2),
        }
    )
    d["site"] = d.site.replace("s3", "s4")
    d.loc[:2, "site"] = "tiny"
    d.loc[3:30, "site"] = "s3"
    effect = d.arm.map({"placebo": 0, "drug": -0.5, "high": -0.9})
    eta = -3 + 0.04 * d.age + 0.03 * (d.bmi - 26) + effect + d.off
    d["sick"] = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
    d.loc[3:30, "sick"] = 1
    mu = np.exp(0.02 * d.age - 0.4 + 0.5 * effect + d.off)
    d["falls"] = rng.poisson(mu)
    d["visits"] = rng.poisson(mu * rng.gamma(2, 0.5, n))
    d["cost"] = rng.gamma(3, 1 / (3 * (0.05 + 0.002 * d.age - 0.02 * effect)), n).round(3)
    d["pressure"] = (100 + 0.5 * d.age + 3 * effect + rng.normal(0, 8, n)).round(1)
    logits = np.stack([np.zeros(n), 0.03 * (d.age - 60) + effect, 0.05 * (d.bmi - 26) - effect], 1)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    d["kind"] = [["a", "b", "c"][rng.choice(3, p=q)] for q in p]
    event = rng.exponential(50 * np.exp(-0.03 * (d.age - 60) - effect))
    censored = rng.exponential(80, n)
    d["time"] = np.ceil(np.minimum(event, censored))
    d["dead"] = (event <= censored).astype(int)
    d["untied"] = (d.time + rng.uniform(-0.4, 0.4, n)).round(7)
    return d


rows().to_csv("glm.csv", index=False)
d = pd.read_csv("glm.csv")
X = patsy.dmatrix("age + bmi + arm", d, return_type="dataframe")
X = X[["Intercept", "age", "bmi", "arm[T.high]", "arm[T.placebo]"]]
family = sm.families
errors = {
    "model": {},
    "robust": {"cov_type": "HC0"},
    "clustered": {"cov_type": "cluster", "cov_kwds": {"groups": d.site.astype("category").cat.codes}},
}
fits = []


def keep(target, model, estimate, se, p, log_likelihood=None, aic=None, method="", tests=None):
    flat = lambda x: [float(v) for v in np.asarray(x).T.ravel()]
    fits.append(
        {
            "target": target,
            "model": model,
            "method": method,
            "estimate": flat(estimate),
            "se": flat(se),
            "p": flat(p),
            "log_likelihood": log_likelihood and float(log_likelihood),
            "aic": aic and float(aic),
            "tests": tests,
        }
    )


def glm(target, kind, model="", by="model", X=X, **weights):
    fit = sm.GLM(d[target], X, family=kind, **weights).fit(tol=1e-14, maxiter=200, **errors[by])
    model = f'kind = "glm"\n{model}'
    keep(target, model, fit.params, fit.bse, fit.pvalues, fit.llf, fit.aic, f'errors = "{by}"')


ols = sm.OLS(d.pressure, X).fit()
keep("pressure", 'kind = "glm"', ols.params, ols.bse, ols.pvalues, ols.llf, ols.aic)
wls = sm.WLS(d.pressure, X, weights=d.w).fit()
keep("pressure", 'kind = "glm"\nweights = "w"', wls.params, wls.bse, wls.pvalues, wls.llf, wls.aic)
for by in ["robust", "clustered"]:
    glm("pressure", family.Gaussian(), "", by)
for by in errors:
    glm("sick", family.Binomial(), 'family = "binomial"', by)
    glm("falls", family.Poisson(), 'family = "poisson"', by)
    glm("cost", family.Gamma(), 'family = "gamma"', by)
both = 'offset = "off"\nweights = "w"'
glm("sick", family.Binomial(), f'family = "binomial"\n{both}', "clustered", offset=d.off, var_weights=d.w)
glm("falls", family.Poisson(), f'family = "poisson"\n{both}', offset=d.off, var_weights=d.w)
frequencies = 'weights = "w"\nweights_are = "frequencies"'
glm("cost", family.Gamma(), f'family = "gamma"\n{frequencies}', freq_weights=d.w)
glm("sick", family.Binomial(), f'family = "binomial"\n{frequencies}', "robust", freq_weights=d.w)
glm("sick", family.Binomial(), f'family = "binomial"\n{frequencies}', "clustered", freq_weights=d.w)
class_weights = 'family = "binomial"\nclass_weights = { "1" = 3.0 }'
glm("sick", family.Binomial(), class_weights, var_weights=np.where(d.sick == 1, 3.0, 1.0))
placebo = "C(arm, Treatment('placebo'))"
Z = patsy.dmatrix(f"age + bmi + {placebo} + age:{placebo}", d, return_type="dataframe")
first = [c for c in Z if c.startswith("C(")]
products = [c for c in Z if c.startswith("age:")]
Z = Z[["Intercept", "age", "bmi", *first, *products]]
terms = 'reference = { arm = "placebo" }\ninteractions = ["age:arm"]'
glm("sick", family.Binomial(), f'family = "binomial"\n{terms}', X=Z)
for by, cov in errors.items():
    nb = sm.NegativeBinomial(d.visits, X, offset=d.off)
    start = nb.fit(disp=0, method="bfgs", maxiter=5000, gtol=1e-10).params
    fit = nb.fit(disp=0, method="newton", maxiter=200, tol=1e-14, start_params=start, **cov)
    model = 'kind = "glm"\nfamily = "negative-binomial"\noffset = "off"'
    keep("visits", model, fit.params, fit.bse, fit.pvalues, fit.llf, fit.aic, f'errors = "{by}"')
    codes = d.kind.astype("category").cat.codes
    fit = sm.MNLogit(codes, X).fit(disp=0, method="newton", tol=1e-14, maxiter=100, **cov)
    model = 'kind = "glm"\nfamily = "multinomial"'
    keep("kind", model, fit.params, fit.bse, fit.pvalues, fit.llf, fit.aic, f'errors = "{by}"')


def ratio_tests(target, kind):
    full = sm.GLM(d[target], X, family=kind).fit(tol=1e-14)
    without = lambda name: X[[c for c in X if not c.startswith(name)]]
    small = lambda name: sm.GLM(d[target], without(name), family=kind).fit(tol=1e-14)
    tests = [float(2 * (full.llf - small(name).llf)) for name in ["age", "bmi", "arm"]]
    model = f'kind = "glm"\nfamily = "{type(kind).__name__.lower()}"'
    keep(target, model, full.params, full.bse, full.pvalues, full.llf, full.aic, "tests = true", tests)


ratio_tests("sick", family.Binomial())
ratio_tests("falls", family.Poisson())
own = 'by_client = "intercept"'
k = [c for c in X if c != "Intercept"]
varied = d[d.site != "s3"]
W = patsy.dmatrix("age + bmi + arm + C(site)", varied, return_type="dataframe")
fit = sm.GLM(varied.sick, W, family=family.Binomial()).fit(tol=1e-14, maxiter=200)
keep("sick", f'kind = "glm"\nfamily = "binomial"\n{own}', fit.params[k], fit.bse[k], fit.pvalues[k], fit.llf)
W = patsy.dmatrix("age + bmi + arm + C(site)", d, return_type="dataframe")
fit = sm.OLS(d.pressure, W).fit()
keep("pressure", f'kind = "glm"\n{own}', fit.params[k], fit.bse[k], fit.pvalues[k], fit.llf, fit.aic)
fit = sm.GLM(d.pressure, W).fit(**errors["clustered"])
keep("pressure", f'kind = "glm"\n{own}', fit.params[k], fit.bse[k], fit.pvalues[k], method='errors = "clustered"')
fit = CoxPHFitter().fit(
    X[k].join(d[["time", "dead", "site"]]), "time", "dead", strata="site", fit_options={"precision": 1e-12}
)
keep("time", 'kind = "cox"\nevent = "dead"', fit.params_, fit.standard_errors_, fit.summary.p, fit.log_likelihood_)
# Breslow's cumulative hazards at covariates of zero, as predictions of this program are relative to.
at_zero = float(np.exp(-fit.params_[k] @ fit._norm_mean[k]))
events = lambda site: np.unique(d.time[(d.site == site) & (d.dead == 1)])
hazard = lambda site: fit.baseline_cumulative_hazard_[site].loc[events(site)] * at_zero
baselines = {site: [list(events(site)), list(hazard(site))] for site in sorted(set(d.site))}
# The sandwich of lifelines takes tied events one after the other, so these times have no ties.
fit = CoxPHFitter().fit(
    X[k].join(d[["untied", "dead", "site"]]).assign(cluster=d.site),
    "untied",
    "dead",
    strata="site",
    cluster_col="cluster",
    fit_options={"precision": 1e-12},
)
event = 'kind = "cox"\nevent = "dead"'
keep("untied", event, fit.params_, fit.standard_errors_, fit.summary.p, method='errors = "clustered"')


def efron(beta, w, times, Z):
    """Score and information of Efron's partial likelihood with case weights `w`."""
    score, information = np.zeros(len(beta), complex), np.zeros((len(beta),) * 2, complex)
    hazard = w * np.exp(Z @ beta)
    for site, time in sorted(set(zip(d.site[d.dead == 1], times[d.dead == 1]))):
        events = ((d.site == site) & (times == time) & (d.dead == 1)).to_numpy()
        at_risk = ((d.site == site) & (times >= time)).to_numpy()
        score += w[events] @ Z[events]
        for left in range(events.sum()):
            a = hazard * at_risk * (1 - events * left / events.sum())
            mean = a @ Z / a.sum()
            score -= w[events].mean() * mean
            information += w[events].mean() * ((Z.T * a) @ Z / a.sum() - np.outer(mean, mean))
    return score, information


def weighted_cox(w, times, Z):
    beta = np.zeros(Z.shape[1], complex)
    for _ in range(12):
        score, information = efron(beta, w, times, Z)
        beta = beta + np.linalg.solve(information, score)
    return beta


def jackknife(times):
    """Clustered errors of tied times by their definition: derivatives of the estimate by the weight of a
    client's rows (infinitesimal jackknife), with a complex step."""
    Z, step = (X[k] - X[k].mean()).to_numpy(), 1e-20
    of = [weighted_cox(1 + 1j * step * (d.site == s).to_numpy(), times, Z).imag / step for s in set(d.site)]
    estimate, se = weighted_cox(np.ones(len(d)), times, Z).real, np.sqrt(np.square(of).sum(0))
    return estimate, se, 2 * scipy.stats.norm.sf(np.abs(estimate / se))


keep("time", event, *jackknife(d.time), method='errors = "clustered"')
_, se, _ = jackknife(d.untied)
assert np.allclose(se, fit.standard_errors_, rtol=1e-9)
versions = {"statsmodels": statsmodels.__version__, "lifelines": lifelines.__version__}
with open("glm.json", "w") as out:
    lines = ",\n".join(json.dumps(fit) for fit in fits)
    out.write(f'{{"versions": {json.dumps(versions)}, "fits": [\n{lines}\n],\n')
    out.write(f'"baselines": {json.dumps(baselines)}}}\n')
