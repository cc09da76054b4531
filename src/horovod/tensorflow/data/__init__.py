"""Input pipelines outside of the training processes, with the tf.data service."""
