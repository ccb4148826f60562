"""The campaign of faults that `python bench/campaign.py` runs: one file per subject, and what they share.

A subject is a module with

    COUNT            how many cases the whole campaign tries
    BOUND            seconds after which a case counts as hanging (generous: a case takes about one)
    JOBS             how many run side by side
    prepare(place)   writes what all cases start from into a folder, once
    run(case)        tries one case, in a process of its own, and says how it ended

Everything random in a case is drawn from `case.rng`, which depends on subject, seed and the case's number alone.
"""
