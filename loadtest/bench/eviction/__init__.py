"""Eviction policies on one pooled cache: LRU, LFU, S3-FIFO, ours, and Belady's optimum."""
