"""What lies in a folder of studies, and the settings that fit it. Nothing here may tell a patient's name."""
