"""Bounds, and threshold ↔ sparsity, as functions: every statement of the paper's theory, corrected where it is wrong.

docs/theory.md has them side by side with what the paper prints. Nothing here needs torch, and scipy only where it is used.
"""

from unifews.theory.certificate import Certificate, NodeCertificate, rounding_norm
from unifews.theory.complexity import propagation_macs, transform_macs
from unifews.theory.curves import Curve, PowerLaw, Quantile, SemiEmpirical, spread
from unifews.theory.fits import CurveFit, TailFit, fit_curve, fit_tail
from unifews.theory.hop import HopMatrix
from unifews.theory.layers import LayerCertificate
from unifews.theory.perron import Bracket, perron, singular
from unifews.theory.removal import removed_norm, removed_norm_by_count, removed_norm_by_size, vector_epsilon
from unifews.theory.sampled import sample_range
from unifews.theory.similarity import Similarity, edge_factors, removed_matrix, similarity, spectral_bound
from unifews.theory.smoothing import objective, smooth, smoothing_error, step

__all__ = [
    "Bracket",
    "Certificate",
    "Curve",
    "CurveFit",
    "HopMatrix",
    "LayerCertificate",
    "NodeCertificate",
    "PowerLaw",
    "Quantile",
    "SemiEmpirical",
    "Similarity",
    "TailFit",
    "edge_factors",
    "fit_curve",
    "fit_tail",
    "objective",
    "perron",
    "propagation_macs",
    "removed_matrix",
    "removed_norm",
    "removed_norm_by_count",
    "removed_norm_by_size",
    "rounding_norm",
    "sample_range",
    "similarity",
    "singular",
    "smooth",
    "smoothing_error",
    "spectral_bound",
    "spread",
    "step",
    "transform_macs",
    "vector_epsilon",
]
