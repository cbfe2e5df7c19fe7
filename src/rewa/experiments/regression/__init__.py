"""Sparse regression beside scikit-learn, skglm and abess: what is selected, how well it predicts and how long it takes.

A process that measures imports this package, and the imports of a method are part of its first call: nothing is imported here.
"""
