"""ReWA as PyTorch optimizers."""
