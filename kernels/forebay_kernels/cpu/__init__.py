"""The C++ library for CPUs: a whole step of a Llama-type model in one call, from packed quantized weights."""
