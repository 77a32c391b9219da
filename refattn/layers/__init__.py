"""Layers: what a model is stacked from, with parameters in a nest, a forward, a vjp that returns the same nest, a cost."""
