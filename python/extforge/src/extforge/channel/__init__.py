"""The bootstrap channel: conda-forge's names, layout and run_exports, made from what a machine has.

It serves machines without a conda mirror (clusters, air gaps, CI) and is never meant for publishing.

* :mod:`~extforge.channel.catalogue` is the table of what is repacked, from where, into which layout;
  :mod:`~extforge.channel.catalogue_cuda` the one of CUDA, made only when asked for;
* :mod:`~extforge.channel.wheels` fetches wheels with pip and reads them;
* :mod:`~extforge.channel.repack`, :mod:`~extforge.channel.assembled`, :mod:`~extforge.channel.interpreter`,
  :mod:`~extforge.channel.compilers` and :mod:`~extforge.channel.driver` turn a row into a planned package;
* :mod:`~extforge.channel.archive` writes a planned package as a ``.conda`` file;
* :mod:`~extforge.channel.make` brings a whole channel directory up to date.
"""
