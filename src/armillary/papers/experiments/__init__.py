"""The papers' tables and figures as runnable experiments: one file per paper, each table or figure a function."""
