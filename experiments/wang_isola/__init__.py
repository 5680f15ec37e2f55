"""Wang & Isola, *Alignment and Uniformity on the Hypersphere* (ICML 2020), one file per item."""
