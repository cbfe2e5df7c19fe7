"""Thin bridges to other libraries; each imports its library when it is used."""
