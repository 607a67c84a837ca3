"""Records as pages for a person. Judges nothing: a verdict is shown as the store holds it."""
