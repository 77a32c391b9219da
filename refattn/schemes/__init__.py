"""One attention scheme in each file: sentence, equation, shapes, source, Inputs, definition, forward, vjp, cost."""
