"""One room per model family: a torch-free layout, and the model itself."""
