"""Run folders -> tables, figures and a page. Reads records only: no torch, no retraining."""
