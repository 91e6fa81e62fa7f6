"""MindSpore: PyNative, graph mode or `mindspore.jit`.

The only place, beside the bundled models, that imports mindspore."""
