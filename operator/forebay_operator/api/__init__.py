"""The custom resources as types: the CRD documents, the validation in reconcile and the docs come from here."""
