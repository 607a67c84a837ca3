"""Side by side with peers, as ratios measured in one run; nothing here is a test."""
