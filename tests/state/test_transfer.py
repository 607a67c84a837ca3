from fake_driver import FakeDriver

from harness.state.transfer import DeviceTransfer, HostTransfer


def test_what_was_sent_is_waited_for_by_name() -> None:
    driver = FakeDriver()
    transfer = DeviceTransfer(driver)
    for turn in range(4):
        if turn > 1:
            transfer.wait(f"t{turn - 2}")
        driver.calls.append(f"fill {turn}")
        with transfer.sending(f"t{turn}"):
            driver.calls.append(f"send {turn}")
    transfer.finish()
    sends = [["begin", f"send {turn}", "end"] for turn in range(4)]
    assert driver.calls == [
        *("fill 0", *sends[0], "fill 1", *sends[1]),
        *("arrived 1", "fill 2", *sends[2], "arrived 2", "fill 3", *sends[3]),
        *("arrived 3", "arrived 4", "join"),
    ]


def test_on_the_host_there_is_nothing_to_wait_for() -> None:
    transfer = HostTransfer()
    transfer.wait("t")
    with transfer.sending("t"):
        pass
    transfer.finish()
