"""The Triton implementations: one kernel a file, the Triton function and its launcher.

In a package of their own, because importing `forebay_kernels.rms_norm` as a module would replace the function of that
name in `forebay_kernels`. Launchers take arguments that `forebay_kernels.operations` has checked.
"""
