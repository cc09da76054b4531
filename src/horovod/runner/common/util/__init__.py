"""Import paths of Horovod 0.28; each module is small or names what lives elsewhere."""
