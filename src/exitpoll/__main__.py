"""`python -m exitpoll` is the same as `exitpoll`."""

from exitpoll.cli.main import main

if __name__ == "__main__":
    main()
