"""The bases of our estimators. scikit-learn has no types of its own: those beside this file are ours."""

from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    DensityMixin,
    OneToOneFeatureMixin,
    RegressorMixin,
    TransformerMixin,
)

__all__ = [
    "BaseEstimator",
    "ClassifierMixin",
    "DensityMixin",
    "OneToOneFeatureMixin",
    "RegressorMixin",
    "TransformerMixin",
]
