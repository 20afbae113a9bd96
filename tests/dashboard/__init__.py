"""Tests of the dashboard, over small runs written by the recorder's own writer: no model is loaded."""
