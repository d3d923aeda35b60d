"""Several replica groups and name servers in virtual time: topics spread over the groups, under all faults."""
