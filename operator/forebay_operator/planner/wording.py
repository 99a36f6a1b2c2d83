"""How numbers are written for people: decimal units, as data sheets and invoices have them."""


def size(num_bytes: int) -> str:
    """`42.95 GB`; exact below a million."""
    if abs(num_bytes) < 1_000_000:
        return f"{num_bytes:,} B"
    for unit, factor in (("TB", 10**12), ("GB", 10**9)):
        if abs(num_bytes) >= factor:
            return f"{num_bytes / factor:.2f} {unit}"
    return f"{num_bytes / 10**6:.1f} MB"


def gpus(count: int, name: str) -> str:
    """`8 x h100-80gb`."""
    return f"{count} x {name}"


def quantity(num_bytes: int) -> str:
    """As Kubernetes writes it, in whole Gi or Mi."""
    gib = 1 << 30
    return f"{num_bytes // gib}Gi" if num_bytes % gib == 0 else f"{num_bytes >> 20}Mi"
