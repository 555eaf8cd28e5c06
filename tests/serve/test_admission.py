"""Admission: a key's requests under way and a minute, and the server's as a whole."""

from __future__ import annotations

import pytest

from dirigent.serve.policy.admission import Admission, Place, Refusal
from dirigent.store.keys import Caller
from tests.facts import says


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def entered(found: Place | Refusal) -> Place:
    assert isinstance(found, Place), found
    return found


def refused(found: Place | Refusal) -> Refusal:
    assert isinstance(found, Refusal), found
    return found


def test_a_key_without_bounds_is_never_refused():
    admission = Admission()
    places = [entered(admission.enter(Caller("k"))) for _ in range(1000)]
    assert admission.in_flight == 1000
    for place in places:
        place.leave()
    assert admission.in_flight == 0


def test_a_place_is_taken_until_it_is_left():
    admission = Admission()
    caller = Caller("k", concurrency=1)
    with entered(admission.enter(caller)):
        refusal = refused(admission.enter(caller))
        assert (refusal.reason, refusal.retry_after_s) == ("concurrency", 1.0)
        assert says(refusal.said, "1")
    entered(admission.enter(caller))


def test_an_error_leaves_its_place_too():
    admission = Admission()
    with pytest.raises(ZeroDivisionError), entered(admission.enter(Caller("k"))):
        raise ZeroDivisionError
    assert admission.in_flight == 0


def test_leaving_twice_frees_one_place():
    admission = Admission()
    caller = Caller("k", concurrency=2)
    first, _second = entered(admission.enter(caller)), entered(admission.enter(caller))
    first.leave()
    first.leave()
    entered(admission.enter(caller))
    refused(admission.enter(caller))


def test_a_minutes_requests_may_come_at_once_and_then_one_by_one():
    clock = Clock()
    admission = Admission(clock=clock)
    caller = Caller("k", requests_per_minute=30)
    for _ in range(30):
        entered(admission.enter(caller)).leave()
    refusal = refused(admission.enter(caller))
    assert refusal.reason == "rate"
    assert refusal.retry_after_s == pytest.approx(2.0)
    clock.now += refusal.retry_after_s + 1e-6
    entered(admission.enter(caller))
    refused(admission.enter(caller))
    clock.now += 3600
    for _ in range(30):
        entered(admission.enter(caller))
    refused(admission.enter(caller))


def test_the_time_that_has_passed_already_is_not_waited_for_again():
    clock = Clock()
    admission = Admission(clock=clock)
    caller = Caller("k", requests_per_minute=30)
    for _ in range(30):
        entered(admission.enter(caller)).leave()
    clock.now += 1.5
    assert refused(admission.enter(caller)).retry_after_s == pytest.approx(0.5)


def test_a_refusal_takes_nothing_from_the_allowance():
    clock = Clock()
    admission = Admission(clock=clock)
    caller = Caller("k", requests_per_minute=2, concurrency=1)
    with entered(admission.enter(caller)):
        for _ in range(10):
            assert refused(admission.enter(caller)).reason == "concurrency"
    entered(admission.enter(caller))


def test_keys_do_not_count_against_one_another():
    admission = Admission()
    entered(admission.enter(Caller("a", concurrency=1)))
    entered(admission.enter(Caller("b", concurrency=1)))


def test_a_full_server_refuses_everybody():
    admission = Admission(max_in_flight=1)
    with entered(admission.enter(Caller("a"))):
        assert refused(admission.enter(Caller("b"))).reason == "busy"
    entered(admission.enter(Caller("b")))
