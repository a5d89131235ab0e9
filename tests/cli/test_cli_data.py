"""`jdml data check`, as a person uses it."""

import jdml.cli


def run(capsys, *arguments):
    try:
        code = jdml.cli.main(["data", *map(str, arguments)])
    except SystemExit as stop:
        code = stop.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def write_pixels(folder, count=2):
    from PIL import Image

    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (9, 9), (i, 0, 0)).save(folder / name / f"{i}.png")


def test_all_is_well(capsys, tmp_path):
    write_pixels(tmp_path)
    code, out, err = run(capsys, "check", "folder", tmp_path, "--quiet")
    assert code == 0
    assert "all is well" in out
    assert "decoded: 4 images" in out
    assert err == ""


def test_something_is_wrong(capsys, tmp_path):
    write_pixels(tmp_path)
    (tmp_path / "cat" / "1.png").write_bytes(b"no image")
    code, out, _ = run(capsys, "check", "folder", tmp_path, "--quiet")
    assert code == 1
    assert "wrong: 1 of 4 images are damaged" in out
    code, out, _ = run(capsys, "check", "cub", tmp_path, "--quiet")
    assert code == 1
    assert "wrong: cub needs images.txt" in out


def test_the_real_lists(capsys, shared_data):
    code, out, _ = run(capsys, "check", "cub", shared_data / "cub200_2011", "--quiet")
    assert code == 1
    assert "5,864 / 5,864" in out
    assert "the lists are whole" in out
    assert "wrong: 11788 of 11788 image files are missing" in out


def test_mistakes(capsys, tmp_path):
    code, _, err = run(capsys, "check", "cub", tmp_path / "none")
    assert (code, err.count("\n")) == (2, 1)
    assert "DIR must be a folder, got" in err
    code, _, err = run(capsys, "check", "imagenet", tmp_path)
    assert code == 2
    assert "omniglot" in err
    code, _, err = run(capsys, "check", "folder", tmp_path, "--sample", "0")
    assert code == 2
    assert "sample must be at least 1" in err
