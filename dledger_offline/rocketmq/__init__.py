"""Moving a RocketMQ broker's store into a running cluster: ``survey.survey`` says what is in it, ``importing.Import`` sends it."""
