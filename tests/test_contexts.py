"""What the controller takes a context to cost."""

from fgsched.controller.gpustate import ContextCosts

MIB = 1 << 20


def test_until_a_context_was_seen_the_site_says_what_one_costs():
    assert ContextCosts(256 * MIB).of("A100") == (256 * MIB, False)


def test_the_least_that_was_seen_of_a_model_counts():
    costs = ContextCosts(256 * MIB)
    for size in (500, 300, 400):
        costs.learn("A100", size * MIB)
    assert (costs.of("A100"), costs.of("H100")) == ((300 * MIB, True), (256 * MIB, False))


def test_next_to_nothing_is_no_context():
    costs = ContextCosts(256 * MIB)
    costs.learn("A100", 8 * MIB - 1)
    assert costs.of("A100") == (256 * MIB, False)


def test_a_process_with_much_else_keeps_no_small_job_out():
    costs = ContextCosts(256 * MIB)
    costs.learn("A100", 5000 * MIB)
    assert costs.of("A100") == (1024 * MIB, True)


def test_a_site_that_reserves_nothing_stays_with_that():
    costs = ContextCosts(0)
    costs.learn("A100", 300 * MIB)
    assert costs.of("A100")[0] == 0
