"""From a trained model to predictions: compress, save and load, export."""
