€ä—Ğ€€ÌŸÂğÖë"

defaultearlyx	