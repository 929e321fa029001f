"""Build, test, audit and index the packages of a recipe, through the API that conda-build uses.

* :mod:`~extforge.build.rendering` renders the recipe for the rows of the variant table and chooses some;
* :mod:`~extforge.build.inputs` tells whether anything that a package is made from has changed;
* :mod:`~extforge.build.process` runs rattler-build, and :mod:`~extforge.build.progress` shows it;
* :mod:`~extforge.build.normalising` takes the traces of one build out of a package;
* :mod:`~extforge.build.building` builds, audits and publishes what was chosen.
"""
