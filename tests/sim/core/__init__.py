"""The pure core alone in virtual time: no files, no broker, a toy network and disk that may do whatever the rules of I/O allow."""
