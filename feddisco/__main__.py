"""``python -m feddisco``: the same as the console script."""

from feddisco.main import main

if __name__ == "__main__":
    main()
