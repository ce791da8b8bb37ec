"""Probability without networks: moments, Gaussian classifiers, products of experts, covariance repair, head weights.

Suffixes: N samples, C classes, d features, V dimensions of a Gaussian code, m participants. What runs inside a client
maps over clients with ``torch.func.vmap``, computes in float64 and never raises on data: what cannot be computed is
NaN.
"""
