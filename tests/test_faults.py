"""Unexpected exceptions in a part of the loop: counted, logged with where they came from, and survived."""

import logging

import pytest

from fgsched.controller.containment import Faults
from fgsched.domain.errors import StorageError
from fgsched.protocol import InternalErrors


def fail():
    raise KeyError("x")


def test_a_fault_is_counted_told_and_logged_with_its_traceback(caplog):
    faults = Faults()
    assert faults.summary() == InternalErrors()
    with caplog.at_level(logging.ERROR):
        assert not faults.run("the pacer", fail)
    assert faults.run("the waiters", lambda: None)
    told = faults.summary()
    assert (told.count, told.last) == (1, "the pacer: KeyError: 'x'")
    assert "internal error in the pacer" in caplog.text
    assert "in fail" in caplog.text


def test_a_fault_that_comes_back_at_once_is_counted_and_not_logged_again(caplog):
    faults = Faults()
    for _ in range(100):
        faults.run("the pacer", fail)
    assert faults.count == 100
    assert caplog.text.count("Traceback") == 1


def test_a_queue_file_that_fails_is_not_survived():
    def lose():
        raise StorageError("the disk is full", "")

    with pytest.raises(StorageError):
        Faults().run("the waiters", lose)
