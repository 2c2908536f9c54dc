"""Figures, sentences and the HTML page on a calibrated model."""
