// One way to write the viewer, so that a change shows what changed.
export default { printWidth: 120 };
