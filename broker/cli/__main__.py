"""``python -m broker.cli`` is the same as ``dledger``."""

from broker.cli.app import main

if __name__ == "__main__":
    main()
