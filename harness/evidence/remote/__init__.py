"""Stores elsewhere: in a folder, in S3, in a dataset of a model hub. Nothing of one is trusted."""
