"""Annotations of serving engines: phase, requests, tokens, and what attention sees."""

from case_tables import cases
from opscope.provenance.serving import ServingPhase, engine_of, serving_step


@cases("name", "engine", "phase", "requests", "tokens", "pairs", "keys")
def test_what_a_step_does(name, engine, phase, requests, tokens, pairs, keys):  # noqa: PLR0917 - a row
    step = serving_step(name)
    assert (step.engine, step.phase) == (engine, ServingPhase(phase))
    assert (step.requests, step.tokens) == (requests, tokens)
    assert (step.attended_pairs, step.keys) == (pairs, keys)


@cases("name")
def test_other_annotations_are_no_steps(name):
    assert serving_step(name) is None


@cases("annotations", "operators", "engine")
def test_the_engine_is_told_by_annotations_then_by_operators(annotations, operators, engine):
    assert engine_of(annotations, operators) == engine
