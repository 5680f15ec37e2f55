"""The lists of faults (`tests/faults/run.py`) still fit the code."""

from faults.run import ROOT, areas


def test_each_fault_is_one_place_and_its_tests_exist():
    faults = [fault for found in areas().values() for fault in found]
    assert len(faults) >= 80
    for fault in faults:
        assert (ROOT / fault.file).read_text().count(fault.old) == 1, fault.what
        assert fault.old != fault.new and fault.tests, fault.what
        for test in fault.tests:
            file, _, name = test.split("[")[0].partition("::")
            path = ROOT / file
            assert path.exists() and (not name or f"def {name}(" in path.read_text()), test
