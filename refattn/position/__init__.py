"""Positions: rotations of queries and keys, biases of scores by distance, tables added to embeddings; each with its vjp.

An *offset* is the position of the first query; explicit positions replace it. Angles are taken in float64 whatever the
dtype of the activations, and rounded to it once, as cosines and sines.
"""
