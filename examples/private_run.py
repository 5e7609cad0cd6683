"""Patient-level differential privacy with its statement: digits of three hospitals, each image a patient.

python examples/private_run.py
"""

import numpy as np
from sklearn.datasets import load_digits

from consilium import Examples, PatientLevel, Split, Work, train

digits = load_digits()
x = digits.images.astype(np.float32)[:, None] / 8 - 1  # the scale is the camera's, 0 to 16, and no patient's
hospitals = {f"hospital-{k}": Examples(x[k::3], digits.target[k::3] < 5, patient="each") for k in range(3)}

results = train(
    hospitals,
    model={"name": "cnn", "widths": [8, 16], "norm": "group"},
    method="fedavg",
    rounds=6,
    work=Work(optimizer="sgd", lr=1.0, epochs=2),
    privacy=PatientLevel(epsilon=6.0, sampling=0.2, views=1, clip=0.5),
    split=Split(train=0.7, validation=0.1, test=0.2),
    folder="runs/private",
)
print(results)
statement = results.statements["hospital-0"]
print(statement.meaning)
for sentence in statement.outside:
    print("  not covered:", sentence)
lines = results.ledger("hospital-0")
print(f"{len(lines)} lines in the ledger; the last one: {lines[-1]['request']}, {lines[-1]['bytes']} bytes")
