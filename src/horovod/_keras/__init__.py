"""What `horovod.keras` and `horovod.tensorflow.keras` share.

Distributed optimizers have this as their `__module__`. Classes that were wrapped become attributes here,
because Keras 2 looks for a saved optimizer where its `__module__` says.
"""
