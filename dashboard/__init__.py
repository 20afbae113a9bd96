"""Layerscope's dashboard: pages that read runs. Needs neither torch nor transformers nor lm_eval."""
