"""The declared tables of studies: what armed producers observed, and what was made of it.

Kept apart from the tables of a record: an armed run's record is that of any run, and a study names
both. Data only; knows nothing of how the columns are analysed.
"""

from collections.abc import Mapping

from harness.evidence.declared import Table


def _table(
    name: str, writer: str, kind: str, key: str, columns: Mapping[str, str]
) -> tuple[str, Table]:
    return name, Table(name=name, writer=writer, kind=kind, key=tuple(key.split()), columns=columns)


STUDY_TABLES: Mapping[str, Table] = dict(
    [
        _table(
            "boundaries",
            "producer",
            "result",
            "repetition phase step boundary",
            {
                "repetition": "int",  # of the replay, from the frozen state
                "phase": "str",
                "step": "int",
                "boundary": "int",  # place in the adapter's ordered list
                "name": "str",
                "dtype": "str",
                "shape": "ints",
                "bytes": "int",
                "digest": "str",
                "is_kept": "bool",  # whether the tensor is in the study's file of tensors
            },
        ),
        _table(
            "armed_steps",
            "producer",
            "result",
            "repetition phase step",
            {
                "repetition": "int",
                "phase": "str",
                "step": "int",
                "is_armed": "bool",
                "num_rows": "int",
                "token": "int?",
                "plane_digest": "str",
                "logits_digest": "str?",
            },
        ),
        _table(
            "replay_states",
            "producer",
            "result",
            "repetition point name",
            {
                "repetition": "int",
                "point": "str",  # frozen (once), after_restore, after_steps
                "name": "str",
                "bytes": "int",
                "digest": "str",
            },
        ),
        _table(
            "armed_times",
            "producer",
            "telemetry",
            "repetition phase step",
            {
                "repetition": "int",
                "phase": "str",
                "step": "int",
                "duration_ns": "int",  # of the armed step, digests included
                "digest_ns": "int",
            },
        ),
        _table(
            "matrix",
            "supervisor",
            "result",
            "phase step boundary",
            {
                "phase": "str",
                "step": "int",
                "boundary": "int",
                "name": "str",
                "num_distinct": "int",
                "groups": "ints",  # by trial: which distinct value it had, numbered from 0
            },
        ),
        _table(
            "case_trials",
            "supervisor",
            "result",
            "realization repetition",
            {
                "realization": "int",
                "repetition": "int",
                "outcome": "str",  # as the child ended, or lost when it left no rows
                "message": "str?",
                "changed_state": "bool?",  # whether the steps changed the mutable state
                "restored_state": "bool?",  # whether the restore returned the frozen one
                "equals_unarmed": "bool?",  # whether each output is one of the unarmed run's
            },
        ),
        _table(
            "differing",
            "supervisor",
            "result",
            "phase step boundary",
            {
                "phase": "str",
                "step": "int",
                "boundary": "int",
                "name": "str",
                "left_digest": "str",
                "right_digest": "str",
            },
        ),
        _table(
            "metrics",
            "supervisor",
            "result",
            "phase step name",
            {
                "phase": "str",
                "step": "int",
                "name": "str",
                "dtype": "str",
                "has_same_inputs": "bool",  # whether both sides were fed the same tokens so far
                "num_elements": "int",
                "num_different": "int",  # elements whose bits differ
                "is_finite": "bool",  # whether all but elements of equal bits are finite
                "max_abs": "float?",  # null, as all that follow, behind a closed finite gate
                "rms": "float?",
                "p99_abs": "float?",  # nearest rank
                "max_ulp": "int?",
                "top_k_max_abs": "float?",  # over the reference's top 32
                "top_k_overlap": "float?",
            },
        ),
        _table(
            "decisions",
            "supervisor",
            "result",
            "phase step",
            {
                "phase": "str",
                "step": "int",
                "left_token": "int",
                "right_token": "int",
                "outcome": "str",  # identical, inside_ambiguity_set, wrong, not_evaluated
                "margin": "float?",  # of the reference's top logit
                "error": "float?",  # largest observed difference of a logit
            },
        ),
        _table(
            "replayed",
            "supervisor",
            "result",
            "table realization place column",
            {
                "table": "str",
                "realization": "int?",
                "place": "str",  # key of the row in the record's table
                "column": "str",  # a digest, or the token
                "recorded": "str?",
                "got": "str?",
                "outcome": "str",  # reproduced, not_reproduced, inapplicable
            },
        ),
    ]
)
"""Every table of a study, by name."""
