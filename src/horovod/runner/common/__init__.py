"""Import paths of Horovod 0.28: what launcher, Spark and Ray share."""
