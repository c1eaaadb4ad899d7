"""Estimators are typed: a wrong parameter is found before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import whimbrel

RIGHT = """
whimbrel.GaussianMixture(2, max_iter=3, uplink="dithering").fit([[0.0]]).predict([[0.0]]).shape
whimbrel.MixtureClassifier(2, step=1.0, standardize=False).get_params()
whimbrel.LowRankImputer("gaussian", rank=1).set_output(transform="pandas")
"""
WRONG = [
    "whimbrel.GaussianMixture(2, foo=1)",
    "whimbrel.LogisticRegression(foo=1)",
    "whimbrel.MixtureRegressor(2, foo=1)",
    "whimbrel.BayesianClassifier(foo=1)",
    "whimbrel.LowRankImputer(foo=1)",
]


def test_a_wrong_parameter_is_an_error_of_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    if (folder := Path(whimbrel.__file__).parents[1]).name != "site-packages":
        monkeypatch.setenv("MYPYPATH", str(folder))
    (tmp_path / "use.py").write_text("\n".join(["import whimbrel", *WRONG, RIGHT]))
    quiet = ["--ignore-missing-imports", "--follow-imports=silent", "--no-error-summary", "--cache-dir=cache"]
    said, errors, _ = api.run([*quiet, "use.py"])
    assert errors == ""
    places = [line.split(":")[1] for line in said.splitlines() if 'keyword argument "foo"' in line]
    assert places == [str(2 + i) for i in range(len(WRONG))] and len(said.splitlines()) == len(WRONG), said
